"""Questions that nobody wrote: generated from the facts and links of any corpus, filtered, split and measured."""
