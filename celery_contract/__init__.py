"""The contract for Celery: `install(app)` on an app that runs already, or `base=ContractTask` on one task."""

from celery_contract.install import install, uninstall
from celery_contract.task import ContractTask

__all__ = ["ContractTask", "install", "uninstall"]
