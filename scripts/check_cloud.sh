#!/usr/bin/env bash
# Checks the feature `cloud`: its tests, then the program with two S3 servers, and a hub and a collector over TLS, all on 127.0.0.1.
#   scripts/check_cloud.sh [VENV]
# moto behaves like S3 under concurrent requests; s3s checks signatures. Creates a virtual environment with moto if none is given
# (some 300 MB from PyPI). Needs openssl and curl. LONGSIFT_SEED sets the random times of the kills.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
work=$(mktemp -d)
servers=()
trap 'for server in "${servers[@]}"; do kill "$server" 2>/dev/null || true; done; rm -rf "$work"' EXIT
unset HTTP_PROXY http_proxy HTTPS_PROXY https_proxy HF_TOKEN HF_HUB_CACHE HF_HUB_OFFLINE
export XDG_CACHE_HOME=$work/cache HF_HOME=$work/hf

step() { printf '\n== %s (after %ss)\n' "$*" "$SECONDS"; }
fail() { echo "error: $*" >&2; exit 1; }

step "tests"
cargo test --features cloud -p longsift-engine --locked --lib -- storage:: plan::fetch:: dataset::discover:: run_directory::
cargo test --features cloud -p longsift-engine --locked --test integration -- hub:: bucket:: stores:: store_kills:: supply_chain::
cargo build -q --features cloud -p longsift-engine --locked --bin longsift
longsift=$repository/target/debug/longsift
cargo build -q --manifest-path testkit/s3-server/Cargo.toml --locked --target-dir target/s3-server

venv=${1:-$repository/target/moto-venv}
if [ ! -x "$venv/bin/moto_server" ]; then
    # Debian's venv cannot install pip without another package, so the system's pip installs into it.
    python3 -m venv --without-pip "$venv"
    python3 -m pip --python "$venv/bin/python" install -q 'moto[server]==5.2.*'
fi

pipeline() { # NAME INPUT MODEL [OUTPUT]
    cat >"$work/$1.yaml" <<YAML
version: 1
name: check
input: {path: "$2", id_column: id, text_column: text, unit_bytes: 100000}
stages:
  - {stage: load-partial-model, model: "$3"}
  - {stage: tokenize, window_tokens: 1024, windows: disjoint, bos: 0}
  - {stage: first-layer-attention}
  - {stage: score, within: source}
  - {stage: filter, keep_fraction: 0.25}
output: {path: "${4:-out/$1}"}
YAML
}
digests() { (cd "$work/out/$1" && find data -type f -exec sha256sum {} + | sort -k 2); }
same() {
    [ -n "$(digests "$1")" ] || fail "$1 has no data"
    diff <(digests "$1") <(digests "$2") || fail "$1 and $2 differ"
    echo "$1 and $2: the same names and bytes"
}
wait_for() { # LOG: the port printed by a server
    for _ in $(seq 300); do
        port=$(grep -oE '127\.0\.0\.1:[0-9]+' "$1" | head -1 | cut -d: -f2 || true)
        if [ -n "$port" ]; then return; fi
        sleep 0.1
    done
    fail "a server does not start: $(cat "$1")"
}
serve() { # NAME COMMAND…
    "${@:2}" >"$work/$1.log" 2>&1 &
    servers+=($!)
    wait_for "$work/$1.log"
}

demo=$repository/datasets/demo
step "a run on a disk, to compare with"
pipeline folder "$demo/corpus.parquet" "$demo/model"
"$longsift" run "$work/folder.yaml" -q >/dev/null

step "input from S3 (moto)"
export AWS_ACCESS_KEY_ID=someone AWS_SECRET_ACCESS_KEY=secret AWS_REGION=us-east-1
serve moto "$venv/bin/moto_server" -H 127.0.0.1 -p 0
export AWS_ENDPOINT_URL=http://127.0.0.1:$port
curl -fsS -X PUT "$AWS_ENDPOINT_URL/corpora" >/dev/null
curl -fsS -T "$demo/corpus.parquet" "$AWS_ENDPOINT_URL/corpora/day/1/corpus.parquet" >/dev/null
pipeline moto "s3://corpora/day/**/*.parquet" "$demo/model"
"$longsift" run "$work/moto.yaml" -q >/dev/null
same folder moto
moto=$AWS_ENDPOINT_URL

step "input from S3 with signatures (s3s)"
mkdir -p "$work/buckets/corpora/day/1"
cp "$demo/corpus.parquet" "$work/buckets/corpora/day/1/"
serve s3s target/s3-server/debug/s3-server "$work/buckets" someone secret
export AWS_ENDPOINT_URL=http://127.0.0.1:$port
pipeline s3s "s3://corpora/day/**/*.parquet" "$demo/model"
"$longsift" run "$work/s3s.yaml" -q >/dev/null
same folder s3s
for address in "s3://corpora/day/1/corpus.parquet" "s3://corpora/day"; do
    pipeline wrong "$address" "$demo/model"
    code=0
    AWS_SECRET_ACCESS_KEY=wrong timeout -k 1 20 "$longsift" run "$work/wrong.yaml" -q >/dev/null 2>"$work/wrong.log" || code=$?
    cat "$work/wrong.log"
    [ $code = 2 ] || fail "a wrong secret: expected exit code 2, got $code"
    grep -q 'credentials' "$work/wrong.log" || fail "a wrong secret: the error does not mention the credentials"
done

step "a run whose input, output and run directory are in a bucket (moto)"
export AWS_ENDPOINT_URL=$moto
curl -fsS -X PUT "$AWS_ENDPOINT_URL/results" >/dev/null
in_bucket() { pipeline "$1" "s3://corpora/day/**/*.parquet" "$demo/model" "s3://results/$1"; }
download() { # NAME: the data of an output, to compare it
    rm -rf "${work:?}/out/$1"
    "$venv/bin/python" - "$1/data/" "$work/out" <<'PYTHON'
import os, sys, boto3
prefix, folder = sys.argv[1:]
bucket = boto3.resource("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).Bucket("results")
for item in bucket.objects.filter(Prefix=prefix):
    path = os.path.join(folder, item.key)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    bucket.download_file(item.key, path)
PYTHON
}
finish() { # NAME: an undisturbed run, and its results
    "$longsift" run "$work/$1.yaml" -q >"$work/summary.json"
    download "$1"
    same folder "$1"
}
status_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["status"])' "$1"; }
in_bucket stored
finish stored
finish stored
[ "$(status_of "$work/summary.json")" = nothing_to_do ] || fail "a finished run was repeated"
"$longsift" status s3://results/stored.run
"$longsift" verify s3://results/stored.run
"$longsift" run "$work/stored.yaml" -q --fresh >/dev/null
finish stored

step "shards, and a selection of them"
in_bucket shards
for shard in 0 1; do
    "$longsift" run "$work/shards.yaml" -q --phase score --shard $shard/2 >/dev/null &
    processes[shard]=$!
done
for process in "${processes[@]}"; do wait "$process"; done
"$longsift" run "$work/shards.yaml" -q --phase select >/dev/null
finish shards

step "two runs at once"
in_bucket race
for racer in 0 1; do
    "$longsift" run "$work/race.yaml" -q >/dev/null 2>"$work/race-$racer.log" &
    processes[racer]=$!
done
for racer in 0 1; do
    codes[racer]=0
    wait "${processes[racer]}" || codes[racer]=$?
done
echo "exit codes ${codes[*]}"
cat "$work"/race-*.log
case "${codes[*]}" in
    "0 "* | *" 0") finish race ;;
    *) fail "neither run has succeeded" ;;
esac

step "ten kills"
seed=${LONGSIFT_SEED:-$$}
RANDOM=$seed
echo "LONGSIFT_SEED=$seed repeats these times"
kills=0
runs=0
while [ $kills -lt 10 ]; do
    runs=$((runs + 1))
    in_bucket "killed$runs"
    for _ in 1 2 3 4; do
        "$longsift" run "$work/killed$runs.yaml" -q >/dev/null 2>&1 &
        child=$!
        sleep "$((RANDOM % 3)).$((RANDOM % 10))"
        kill -9 $child 2>/dev/null || true
        code=0
        wait $child 2>/dev/null || code=$?
        # A run that had already ended was not killed.
        if [ $code = 137 ]; then kills=$((kills + 1)); fi
    done
    finish "killed$runs"
done
echo "$kills kills of $runs runs"

step "a model of the hub, over TLS, from a server without range requests"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj '/CN=a root of this check' \
    -keyout "$work/root.key" -out "$work/root.pem" 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout "$work/key.pem" -out "$work/request.pem" 2>/dev/null
openssl x509 -req -in "$work/request.pem" -CA "$work/root.pem" -CAkey "$work/root.key" -CAcreateserial -days 2 \
    -extfile <(echo 'subjectAltName=IP:127.0.0.1') -out "$work/cert.pem" 2>/dev/null
commit=0123456789abcdef0123456789abcdef01234567
mkdir -p "$work/hub/demo/model/resolve"
ln -s "$demo/model" "$work/hub/demo/model/resolve/$commit"
cat >"$work/hub.py" <<'PYTHON'
import http.server, ssl, sys
work = sys.argv[1]

class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments):
        super().__init__(*arguments, directory=work + "/hub")

    def do_POST(self):  # a collector of lineage
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(work + "/lineage.jsonl", "ab") as events:
            events.write(body + b"\n")
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(work + "/cert.pem", work + "/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("127.0.0.1:%d" % server.server_address[1], flush=True)
server.serve_forever()
PYTHON
serve hub python3 "$work/hub.py" "$work"
pipeline tls "$demo/corpus.parquet" "hf://demo/model@$commit"
HF_ENDPOINT=https://127.0.0.1:$port SSL_CERT_FILE=$work/root.pem "$longsift" run "$work/tls.yaml" -q >/dev/null
same folder tls
OPENLINEAGE_URL=https://127.0.0.1:$port SSL_CERT_FILE=$work/root.pem "$longsift" run "$work/folder.yaml" --fresh >/dev/null
[ "$(grep -c '"eventType":"\(START\|COMPLETE\)"' "$work/lineage.jsonl")" = 2 ] || fail "lineage over TLS has not arrived"
# A certificate without a trusted issuer is rejected.
rm -rf "$work/cache"
if HF_ENDPOINT=https://127.0.0.1:$port timeout -k 1 20 "$longsift" plan "$work/tls.yaml" >"$work/refused.log" 2>&1; then
    fail "an unknown certificate was accepted"
fi
grep -i 'certificate' "$work/refused.log" | head -1 || fail "the error does not mention the rejected certificate: $(cat "$work/refused.log")"

echo
echo "OK: the feature cloud works"
