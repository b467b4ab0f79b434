"""An encoder of one's own for what is not text: dense feature vectors, such as the measurements of a sensor."""

from torch import Tensor, nn


class Perceptron(nn.Module):
    """Features (B, width) to vectors (B, hidden)."""

    def __init__(self, width: int, hidden: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = hidden
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, hidden)
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.layers(features)
