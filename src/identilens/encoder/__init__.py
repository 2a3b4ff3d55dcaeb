"""Identifiable transformer encoders (Bhardwaj et al. 2021): models, data, training."""

from identilens.encoder.configuration import IdentifiableEncoderConfig as IdentifiableEncoderConfig
from identilens.encoder.drop_in import IdentifiableTransformerLayer as IdentifiableTransformerLayer
from identilens.encoder.layer import IdentifiableEncoderLayer as IdentifiableEncoderLayer
from identilens.encoder.modeling import (
    IdentifiableEncoderForSequenceClassification as IdentifiableEncoderForSequenceClassification,
)
from identilens.encoder.modeling import IdentifiableEncoderModel as IdentifiableEncoderModel
from identilens.encoder.rank_lengths import rank_by_length as rank_by_length
from identilens.encoder.settings import EncoderSettings as EncoderSettings
