"""Operations on a home that no daemon serves: the same table, run in this process."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Self, TypeVar

from spamnb.service.admin.client import AdminClient
from spamnb.service.admin.model_config import ModelConfig, open_model, open_service
from spamnb.service.admin.operations import Administration
from spamnb.service.admin.request import AdminRequest, AdminResponse, Caller, Header
from spamnb.service.engine.filter import Filter
from spamnb.service.feedback.review_queue import ReviewQueue
from spamnb.service.feedback.service import FeedbackService
from spamnb.store.maintenance import exclusive

Result = TypeVar("Result")


class HomeModel:
    """`AdminModel` of a home without a daemon; opened when the first operation needs it."""

    fault = ""

    def __init__(self, config: ModelConfig, warn: Callable[[str], None]) -> None:
        self.config = config
        self._warn = warn
        self._service: FeedbackService | None = None

    @property
    def documents(self) -> bool:
        with self.service() as service:
            return service.documents

    @property
    def review_queue(self) -> ReviewQueue:
        return self.config.review_queue

    @contextmanager
    def service(self) -> Iterator[FeedbackService]:
        if self._service is None:
            self._service = open_service(self.config, self._warn)
        yield self._service

    @contextmanager
    def reading(self) -> Iterator[Filter]:
        """Yield the model, opened for reading only."""
        with open_model(self.config, readonly=True) as model:
            yield model

    def open(self) -> None:
        """Do nothing: the first operation opens the model."""

    def replaced(self, replace: Callable[[], Result]) -> Result:
        """Run a function while the model is closed, if no other process has it open."""
        self.close()
        with exclusive(self.config.home):
            pass
        return replace()

    def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.model.close()


class LocalClient(AdminClient):
    """Runs the operations in this process, on a home; the caller is an admin."""

    def __init__(self, config: ModelConfig, login: str, warn: Callable[[str], None]) -> None:
        self._model = HomeModel(config, warn)
        self._administration = Administration(self._model)
        self._caller = Caller(os.geteuid(), "admin", login)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._administration.close()
        self._model.close()

    def ask(self, op: str, body: bytes = b"", **fields: Any) -> AdminResponse:
        return self._run(op, io.BytesIO(body), fields)

    def ask_with_file(self, op: str, file: BinaryIO, size: int, **fields: Any) -> Header:  # noqa: ARG002 - as of a socket
        return self._run(op, file, fields).header

    def _run(self, op: str, file: BinaryIO, fields: Header) -> AdminResponse:
        def save_body(_: int, handle: int) -> None:
            with open(handle, "wb", closefd=False) as copy:
                shutil.copyfileobj(file, copy)

        header = {"op": op, **fields}
        return self._administration(
            AdminRequest(self._caller, header, lambda _: file.read(), save_body)
        )
