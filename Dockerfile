# The CPU stack: scripts/setup.sh in a container. 8 GiB of disk, Linux on x86-64.
#
#   docker build -t openrlhf_ebpo .
#   docker run --rm -it --init --shm-size=2g -v "$PWD/runs:/openrlhf_ebpo/runs" openrlhf_ebpo                    # the quickstart
#   docker run --rm -it --init --shm-size=2g openrlhf_ebpo bash scripts/test.sh                                  # all tests
FROM python:3.11-slim-bookworm

WORKDIR /openrlhf_ebpo
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 procps && rm -rf /var/lib/apt/lists/*

# The stack changes seldom and takes minutes: its layer is kept as long as these files are the same.
COPY scripts/setup.sh scripts/
COPY requirements/ requirements/
COPY pyproject.toml setup.py README.md LICENSE ./
COPY openrlhf_ebpo/ openrlhf_ebpo/
COPY eval/ eval/
COPY space/ space/
RUN bash -c '. scripts/setup.sh'

COPY . .
ENV PATH=/openrlhf_ebpo/.venv/bin:$PATH
CMD ["bash", "scripts/quickstart.sh"]
