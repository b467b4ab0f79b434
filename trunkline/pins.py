"""Libraries of which one minor version is used, because an internal part of them is."""

from importlib.metadata import PackageNotFoundError, version

from trunkline.errors import SettingsError


def require(package: str, minor: str, found: str | None = None) -> None:
    """Check that an installed library is of the minor version that an adapter was written for.

    >>> require("flwr", "1.42", found="1.42.3")
    >>> require("flwr", "1.42", found="1.5.0")
    Traceback (most recent call last):
    ...
    trunkline.errors.SettingsError: `flwr` should be version 1.42.*, found 1.5.0. Install it with: pip install "flwr==1.42.*".

    :param found: the version; None looks it up.
    :raises SettingsError: another version, or none.
    """
    if found is None:
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "none"
    if found.split(".")[:2] != minor.split("."):
        raise SettingsError(
            f"`{package}` should be version {minor}.*, found {found}.", hint=f'Install it with: pip install "{package}=={minor}.*".'
        )
