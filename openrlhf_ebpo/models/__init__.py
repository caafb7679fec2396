"""What a folder with a model must be before anything of it is loaded or published. Needs neither torch nor transformers."""
