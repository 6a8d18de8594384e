"""The store on Valkey: connection, scripts, keys and the transitions that use them."""
