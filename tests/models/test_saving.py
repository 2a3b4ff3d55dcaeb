from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    is_progress_bar_enabled,
)

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.models import load
from identilens.models.saving import save_model


def test_a_saved_model_is_read_back_and_nothing_is_printed(tmp_path, capfd):
    shown = is_progress_bar_enabled()
    enable_progress_bar()
    try:
        model = DyckForCausalLM(DyckConfig())
        save_model(model, bracket_tokenizer(model.config.language), tmp_path)
        assert is_progress_bar_enabled()
    finally:
        if not shown:
            disable_progress_bar()
    assert capfd.readouterr() == ("", "")
    lens = load(str(tmp_path), device="cpu")
    assert (
        lens.tokenizer("([])")["input_ids"]
        == bracket_tokenizer(model.config.language)("([])")["input_ids"]
    )
    assert all(
        (one == other).all()
        for one, other in zip(model.parameters(), lens.model.parameters(), strict=True)
    )
