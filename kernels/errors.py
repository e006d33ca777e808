"""The error tree of all four floors. Lowest floor, so that everyone may raise from it and one handler can read it.

SurefootError
├── RequestError            a user's fault; carries OpenAI's status/type/param/code and becomes a body in one handler
├── StartError              the process cannot start as asked; one line on stderr and exit code 2
│   ├── ConfigError         a flag, variable or combination of them
│   └── ModelFileError      a GGUF file, naming file and key or tensor
└── StepError               a native step ended without committing anything
    └── StepCancelled       because its cancel flag was set
"""


class SurefootError(Exception):
    """Root of every error that Surefoot raises on purpose."""


class RequestError(SurefootError):
    """A request that cannot be served as sent. `param` names the offending field, `code` is OpenAI's error code."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind
        self.retry_after = retry_after  # seconds, for 429 and 503


class StartError(SurefootError):
    """The process cannot start as asked. The message is one line and complete."""


class ConfigError(StartError):
    """A flag, an environment variable, or a combination of them."""


class ModelFileError(StartError):
    """A model file that cannot be used. `subject` is the key or tensor at fault, where there is one."""

    def __init__(self, path: str, message: str, subject: str | None = None) -> None:
        self.path = path
        self.subject = subject
        super().__init__(f"{path}: {subject}: {message}" if subject else f"{path}: {message}")


class StepError(SurefootError):
    """A step failed; nothing of it was committed and its sequences may be run again."""


class StepCancelled(StepError):
    """The step's cancel flag was set; it ended within one layer."""
