.PHONY: build/typed
build/typed: ## the import tree, for checkers that cannot read package-dir
	rm -rf $@ && mkdir -p $@/pyrula/workflows
	ln -s $(CURDIR)/supervisor $@/pyrula/supervisor
	ln -s $(CURDIR)/runner/* $@/pyrula/workflows/
	ln -s $(CURDIR)/shards $@/pyrula/workflows/shards
	ln -s $(CURDIR)/store $@/pyrula/workflows/stores
