"""Bounded Dyck languages (Wen et al. 2023): models, training, constructions, pruning, measures of attention."""

from identilens.dyck.balance import Balance as Balance
from identilens.dyck.balance import SecondLayer as SecondLayer
from identilens.dyck.balance import measure_balance as measure_balance
from identilens.dyck.balance import second_layer as second_layer
from identilens.dyck.configuration import DyckConfig as DyckConfig
from identilens.dyck.evaluation import Accuracy as Accuracy
from identilens.dyck.evaluation import closing_accuracy as closing_accuracy
from identilens.dyck.evaluation import generalisation as generalisation
from identilens.dyck.evaluation import support_accuracy as support_accuracy
from identilens.dyck.language import Dyck as Dyck
from identilens.dyck.language import with_start as with_start
from identilens.dyck.modeling import DyckForCausalLM as DyckForCausalLM
from identilens.dyck.modeling import DyckModel as DyckModel
from identilens.dyck.parsing import next_token_distribution as next_token_distribution
from identilens.dyck.parsing import parse as parse
from identilens.dyck.settings import DyckSetting as DyckSetting
from identilens.dyck.settings import DyckTraining as DyckTraining
from identilens.dyck.stack_likeness import stack_likeness as stack_likeness
from identilens.dyck.sufficiency import balanced_scores as balanced_scores
from identilens.dyck.sufficiency import sufficient_model as sufficient_model
from identilens.dyck.training import train_models as train_models
from identilens.dyck.uniform import uniform_transformer as uniform_transformer
from identilens.dyck.variation import attention_variation as attention_variation
from identilens.dyck.variation import random_baselines as random_baselines
