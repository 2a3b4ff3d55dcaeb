"""All exceptions that identilens raises for users.

Each message says what was expected, what arrived, and what to do next.
"""


class IdentilensError(Exception):
    """Base of all errors raised on purpose; the command line prints it and exits with code 2."""


class InputError(IdentilensError, ValueError):
    """A text, tensor, file or option that cannot be used as given."""


class SettingError(InputError):
    """An option with a value that is not allowed.

    Args:
        setting: Name of the option, as an argument in Python.
        expected: What is expected, in words that follow the option's name.
        got: The value that was given.
    """

    def __init__(self, setting: str, expected: str, got: object) -> None:
        super().__init__(f"expected {setting} {expected}; got {got!r:.200}.")
        self.setting, self.expected, self.got = setting, expected, got

    def __reduce__(self) -> tuple:
        return type(self), (self.setting, self.expected, self.got)


class ModelNotFoundError(IdentilensError):
    """No model is found under the given id or path."""


def model_not_found(model: object, error: Exception) -> ModelNotFoundError:
    """Return the error for an id or path without a configuration that can be read, with the first line of its cause."""
    return ModelNotFoundError(
        f"no model found under {str(model)!r}: expected a hub id or a folder with a config.json, bundled or "
        f"bundled-decoder. Check the spelling, or download it first and pass the folder. ({first_line(error)})"
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


class ModelError(IdentilensError):
    """A model cannot be created from its files: weights are lacking or damaged, a package is not installed."""


class UnsupportedModelError(IdentilensError):
    """The model computes attention in a way that cannot be captured faithfully."""


class JoinedTextsError(UnsupportedModelError):
    """The model joins the texts of a batch, so they cannot be separated; a batch of one text can be captured."""


class OutputFolderError(InputError):
    """A run's folder contains something else, a file of it is damaged, or it cannot be written."""


class NumericalError(IdentilensError, ArithmeticError):
    """A computation met NaN or infinity, or a solver did not reach its tolerance."""


class CheckFailedError(IdentilensError):
    """A check that was asked for has failed; the command line exits with code 1."""
