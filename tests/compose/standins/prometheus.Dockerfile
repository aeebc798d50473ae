# Stands in for prom/prometheus in tests: Debian's Prometheus, with the image's user, command and directories.
FROM framekeeper-test/trixie
RUN apt-get update && apt-get install -y --no-install-recommends prometheus \
 && rm -rf /var/lib/apt/lists/* /etc/prometheus/* \
 && install -d -o 65534 -g 65534 /prometheus && ln -s /usr/bin/prometheus /bin/promtool /usr/local/bin/
USER 65534
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
