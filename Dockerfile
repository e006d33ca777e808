# Two stages: the first has a compiler and builds wheels, the second has neither and runs as an ordinary user.
# torch is left out of the image: serving on the CPU backend never imports it (it is the tests' reference and the CUDA path).
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir build \
 && python -m build --wheel --outdir /wheels . \
 && python -c "import tomllib; \
deps = tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']; \
print('\n'.join(d for d in deps if not d.startswith('torch')))" > /wheels/requirements.txt

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -r /wheels/requirements.txt \
 && pip install --no-cache-dir --no-deps /wheels/*.whl && rm -r /wheels \
 && useradd --create-home --uid 10001 surefoot && install -d -o surefoot /models /var/lib/surefoot
USER surefoot
# A wheel installs without its native part too, where that cannot be built; this image has nothing else to compute with.
RUN python -c "import surefoot.kernels.cpu._ops"
# Models are mounted at /models; the default model is fetched to SUREFOOT_HOME on first use.
ENV SUREFOOT_HOST=0.0.0.0 SUREFOOT_PORT=8000 SUREFOOT_HOME=/var/lib/surefoot PYTHONUNBUFFERED=1
VOLUME ["/models", "/var/lib/surefoot"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"SUREFOOT_PORT\"]}/health', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["surefoot"]
CMD ["serve"]
