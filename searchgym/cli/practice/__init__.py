"""Commands that prepare what a model practises on."""
