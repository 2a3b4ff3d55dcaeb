"""Own contribution by part of speech."""

import polars as pl

from identilens.errors import InputError
from identilens.measures.mixing.own import box_statistics


def boxes_by_tag(own: pl.DataFrame, tags: pl.DataFrame) -> pl.DataFrame:
    """Return own contributions as boxes, one for each kind, layer and part of speech (Brunner Fig. 26–37).

    ``own`` is from `own_contributions`; ``tags`` has the tag of every token of every text: text, position, tag.

    Returns:
        Columns as from `box_statistics`, tags in the order of their median at the last layer, highest first.

    Raises:
        InputError: If tags and contributions do not fit.
    """
    sizes = own.group_by("text").agg(pl.col("position").max() + 1).sort("text")
    lengths = dict(tags.group_by("text").agg(pl.col("position").max() + 1).iter_rows())
    for text, size in sizes.iter_rows():
        # A text that was cut has fewer tokens than its tags; its last token may be a special one.
        if lengths.get(text) != size:
            raise InputError(
                f"text {text} has {size} tokens in the result and {lengths.get(text, 0)} here. Pass the same texts in "
                "the same order, not cut by max_length."
            )
    boxes = box_statistics(
        own.join(tags, on=["text", "position"], how="inner"), ("kind", "layer", "tag")
    )
    last = boxes.filter(pl.col("layer") == pl.col("layer").max()).select(
        "kind", "tag", last="median"
    )
    joined = boxes.join(last, on=["kind", "tag"])
    return joined.sort("kind", "layer", "last", descending=[False, False, True]).drop("last")
