# The server: HTTP and gRPC, no torch and no compiler. docs/deploying.md says how to use it.
FROM python:3.13-slim

# What is built from is the folder that `make wheel` writes.
COPY ingot_lm-*.whl /tmp/
RUN pip install --no-cache-dir "$(ls /tmp/ingot_lm-*.whl)[serve,grpc]" && rm /tmp/ingot_lm-*.whl

RUN useradd --create-home --uid 10001 ingot
USER 10001
WORKDIR /models
EXPOSE 8000 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/live')"]
ENTRYPOINT ["ingot"]
CMD ["serve", "--help"]
