"""A local web page to look at a model's attention while one types; needs the extra ``explorer``."""
