"""The contract for Celery: `install(app)` on an app that runs already, or `base=ContractTask` on one task."""

try:
    import celery  # noqa: F401
except ImportError as error:
    raise ImportError("celery_contract needs Celery: pip install 'task-contract[celery]'") from error

from celery_contract.install import install, uninstall
from celery_contract.task import ContractTask

__all__ = ["ContractTask", "install", "uninstall"]
