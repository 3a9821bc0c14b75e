"""The live shell: HTTP in, engines out. It executes commands of `prism.core` and makes no decision itself."""
