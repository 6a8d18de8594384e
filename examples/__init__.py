"""Programs that use Pyrula as anybody would. `make demo` runs the first one."""
