# Stands in for python:3.11-slim-bookworm in tests: Debian's own Python 3.11, with headers, as the real one has them.
FROM framekeeper-test/bookworm
RUN apt-get update && apt-get install -y --no-install-recommends python3-dev python3-pip python3-venv \
 && apt-get purge -y --auto-remove build-essential \
 && ln -s python3 /usr/bin/python \
 && rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/EXTERNALLY-MANAGED
CMD ["python3"]
