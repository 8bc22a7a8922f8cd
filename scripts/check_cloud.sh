#!/usr/bin/env bash
# The feature `cloud`: its tests, then the program against an S3 server (moto) and over TLS, all on 127.0.0.1.
#   scripts/check_cloud.sh [VENV]
# Without a virtual environment that has moto one is made (some 300 MB from PyPI). Needs openssl.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
work=$(mktemp -d)
servers=()
trap 'for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done; rm -rf "$work"' EXIT
unset HTTP_PROXY http_proxy HTTPS_PROXY https_proxy HF_TOKEN HF_HUB_CACHE HF_HUB_OFFLINE
export XDG_CACHE_HOME=$work/cache HF_HOME=$work/hf

cargo test --features cloud -p longsift-engine --locked --lib -- http:: hub:: object_stores:: remote_model::
cargo test --features cloud -p longsift-engine --locked --test integration -- hub:: stores::
cargo build -q --features cloud -p longsift-engine --locked --bin longsift
longsift=$repository/target/debug/longsift

venv=${1:-$repository/target/moto-venv}
if [ ! -x "$venv/bin/moto_server" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q 'moto[server]==5.2.*'
fi

pipeline() { # NAME INPUT MODEL
    cat >"$work/$1.yaml" <<YAML
version: 1
name: $1
input: {path: "$2", id_column: id, text_column: text, unit_bytes: 1000000}
stages:
  - {stage: load-partial-model, model: "$3"}
  - {stage: tokenize, window_tokens: 1024, windows: disjoint, bos: 0}
  - {stage: first-layer-attention}
  - {stage: score, within: source}
  - {stage: filter, keep_fraction: 0.25}
output: {path: "out/$1"}
YAML
}
digests() { (cd "$work/out/$1" && find data -type f -exec sha256sum {} + | sort); }
same() { diff <(digests "$1") <(digests "$2") && echo "$1 and $2: the same bytes"; }
wait_for() { # LOG: the port that a server says it listens on
    for _ in $(seq 100); do
        port=$(grep -oE '127\.0\.0\.1:[0-9]+' "$1" | head -1 | cut -d: -f2 || true)
        if [ -n "$port" ]; then return; fi
        sleep 0.1
    done
    cat "$1"
    exit 1
}

demo=$repository/datasets/demo
pipeline folder "$demo/corpus.parquet" "$demo/model"
"$longsift" run "$work/folder.yaml" -q >/dev/null

# Input from S3.
"$venv/bin/moto_server" -H 127.0.0.1 -p 0 >"$work/moto.log" 2>&1 &
servers+=($!)
wait_for "$work/moto.log"
export AWS_ENDPOINT_URL=http://127.0.0.1:$port AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_REGION=us-east-1
curl -fsS -X PUT "$AWS_ENDPOINT_URL/corpora" >/dev/null
curl -fsS -T "$demo/corpus.parquet" "$AWS_ENDPOINT_URL/corpora/day/1/corpus.parquet" >/dev/null
pipeline s3 "s3://corpora/day/**/*.parquet" "$demo/model"
"$longsift" run "$work/s3.yaml" -q
same folder s3

# A model of the hub, over TLS, from a server that knows no ranges.
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext 'subjectAltName=IP:127.0.0.1' \
    -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
commit=0123456789abcdef0123456789abcdef01234567
mkdir -p "$work/hub/demo/model/resolve"
ln -s "$demo/model" "$work/hub/demo/model/resolve/$commit"
python3 - "$work" >"$work/hub.log" 2>&1 <<'PYTHON' &
import functools, http.server, ssl, sys
work = sys.argv[1]
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=work + "/hub")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(work + "/cert.pem", work + "/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("127.0.0.1:%d" % server.server_address[1], flush=True)
server.serve_forever()
PYTHON
servers+=($!)
wait_for "$work/hub.log"
pipeline tls "$demo/corpus.parquet" "hf://demo/model@$commit"
HF_ENDPOINT=https://127.0.0.1:$port SSL_CERT_FILE=$work/cert.pem "$longsift" run "$work/tls.yaml"
same folder tls
# A certificate that nobody vouches for is refused.
rm -rf "$work/cache"
if HF_ENDPOINT=https://127.0.0.1:$port timeout 20 "$longsift" plan "$work/tls.yaml" >"$work/refused.log" 2>&1; then
    echo "an unknown certificate was accepted"
    exit 1
fi
grep -i 'certificate' "$work/refused.log" | head -1
echo "the feature cloud is in order"
