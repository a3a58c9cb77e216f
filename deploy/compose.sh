#!/usr/bin/env bash
# deploy/compose.sh secrets|build|up|down|logs|backup|restore: what `make` calls of docker-compose.yml.
#   secrets          write .env and the folder of secrets, unless they are there
#   build            the two images
#   up               start everything, return when every service is healthy
#   down             stop and remove the containers; volumes stay
#   logs             follow the logs of all services
#   backup FOLDER    stop the writers, copy both databases, objects, runs and logs into FOLDER, start again
#   restore FOLDER   into volumes that do not exist yet: all of that back, then start
set -euo pipefail
cd "$(dirname "$0")/.."

env_file=${SCALEUP_ENV:-.env}
wait_seconds=${SCALEUP_WAIT_SECONDS:-600}
names=(postgres_password airflow_db_password airflow_fernet_key airflow_secret_key airflow_jwt_secret
    airflow_admin_password airflow_operator_password mlflow_db_password mlflow_admin_password mlflow_secret_key
    mlflow_password s3_credentials)
writers=(scheduler triggerer dag-processor api-server mlflow)

give_up() { # one sentence
    echo "scaleup: $*" >&2
    exit 1
}

compose() {
    if docker compose version >/dev/null 2>&1; then
        docker compose --env-file "$env_file" "$@"
    elif command -v docker-compose >/dev/null; then
        docker-compose --env-file "$env_file" "$@"
    else
        give_up "neither \`docker compose\` nor docker-compose is here; on Debian and Ubuntu: apt-get install docker.io docker-compose"
    fi
}

setting() { # a name: its value in the file of settings
    sed -n "s/^$1=//p" "$env_file" | tail -n 1
}

random() { # 32 random bytes in base64 that is safe in an address
    head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n'
}

word() { # a name: a new secret
    case $1 in
    airflow_fernet_key) random ;;
    airflow_jwt_secret) echo "$(random)$(random)" | tr -d '=' ;; # SHA-512 wants 64 bytes (RFC 7518, 3.2)
    s3_credentials)
        printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' \
            "$(head -c 10 /dev/urandom | od -An -tx1 | tr -d ' \n')" "$(random | tr -d '=')"
        ;;
    *) random | tr -d '=' ;;
    esac
}

write_secrets() {
    [ -e "$env_file" ] || cp .env.example "$env_file"
    local folder name
    folder=$(setting SCALEUP_SECRETS)
    [ -n "$folder" ] || give_up "$env_file says no SCALEUP_SECRETS; .env.example has the line"
    # Never one by one: a new key beside an old database would lock its owner out, and silently.
    [ -e "$folder" ] && return
    mkdir -m 700 "$folder"
    for name in "${names[@]}"; do
        word "$name" >"$folder/$name"
        # The folder lets nobody else in; inside of a container another user number has to read the file.
        chmod 444 "$folder/$name"
    done
    echo "scaleup: new secrets are in $folder; keep a copy elsewhere, for a backup does not hold them"
}

check_secrets() {
    [ -e "$env_file" ] || give_up "$env_file is missing; \`make secrets\` writes it"
    local folder name
    folder=$(setting SCALEUP_SECRETS)
    for name in "${names[@]}"; do
        [ -s "$folder/$name" ] || give_up "the secret $folder/$name is missing or empty; put the word back that it had," \
            "or remove $folder and all volumes and run \`make secrets\`"
    done
}

wait_healthy() {
    local deadline=$((SECONDS + wait_seconds)) began=$SECONDS waiting id state service status health code
    while :; do
        waiting=
        for id in $(compose ps -a -q); do
            state=$(docker inspect --format \
                '{{index .Config.Labels "com.docker.compose.service"}} {{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}} {{.State.ExitCode}}' "$id")
            read -r service status health code <<<"$state"
            if [ "$service" = initialize ]; then
                [ "$status $code" = "exited 0" ] || waiting="$waiting $service"
            elif [ "$health" != healthy ]; then
                waiting="$waiting $service($status, $health)"
            fi
        done
        [ -n "$waiting" ] || break
        [ "$SECONDS" -lt "$deadline" ] || give_up "not healthy after $wait_seconds s:$waiting; see \`make logs\`"
        sleep 1
    done
    echo "scaleup: every service is healthy, $((SECONDS - began)) s after the last one was started"
}

up() {
    check_secrets
    compose up -d --no-build
    wait_healthy
    echo "Airflow  http://127.0.0.1:$(setting AIRFLOW_PORT)   user 'operator' or 'admin', passwords in $(setting SCALEUP_SECRETS)"
    echo "MLflow   http://127.0.0.1:$(setting MLFLOW_PORT)   user 'admin', password in $(setting SCALEUP_SECRETS)/mlflow_admin_password"
}

volume() { # a name in docker-compose.yml: the engine's
    echo "$(setting COMPOSE_PROJECT_NAME)_$1"
}

in_volume() { # a volume's name, then a command that finds it at /volume, as root of the image of ours
    docker run --rm -i --network none --user 0 --entrypoint "$2" -v "$(volume "$1"):/volume" \
        "scaleup/pipeline:${SCALEUP_VERSION:-0.1.0}" "${@:3}"
}

backup() { # a folder, made whole under another name and then renamed
    local folder=$1 draft=$1.draft name
    [ ! -e "$folder" ] && [ ! -e "$draft" ] || give_up "$folder or $draft is there already; name another with BACKUP="
    [ -n "$(compose ps -q postgres)" ] || give_up "nothing runs; \`make up\` first"
    mkdir -p -m 700 "$draft"
    # Runs, objects and both databases have to be of one moment; jobs of local clusters go on from their checkpoints.
    compose stop "${writers[@]}"
    for name in airflow mlflow; do
        compose exec -T --user postgres postgres pg_dump --format=custom "$name" >"$draft/$name.dump"
    done
    for name in store home airflow-logs; do
        in_volume "$name" tar --create --directory /volume . >"$draft/$name.tar"
    done
    (cd "$draft" && sha256sum -- *.dump *.tar >SHA256SUMS)
    mv "$draft" "$folder"
    compose start "${writers[@]}"
    wait_healthy
    echo "scaleup: $folder holds databases, objects, runs and logs ($(du -sh "$folder" | cut -f1)); no secrets"
}

restore() { # a folder
    local folder=$1 name
    check_secrets
    (cd "$folder" && sha256sum --check --quiet SHA256SUMS) || give_up "$folder is no whole backup"
    for name in postgres store home airflow-logs; do
        ! docker volume inspect "$(volume "$name")" >/dev/null 2>&1 ||
            give_up "the volume $(volume "$name") is there; a restore goes into new volumes only, so remove it first"
    done
    compose up -d --no-build postgres
    until [ "$(docker inspect --format '{{.State.Health.Status}}' "$(compose ps -q postgres)")" = healthy ]; do sleep 1; done
    for name in store home airflow-logs; do
        # With the labels by which compose knows its own; its `--no-start` waits for ever where one service waits for another.
        docker volume create --label "com.docker.compose.project=$(setting COMPOSE_PROJECT_NAME)" \
            --label "com.docker.compose.volume=$name" "$(volume "$name")" >/dev/null
        in_volume "$name" tar --extract --same-owner --numeric-owner --directory /volume <"$folder/$name.tar"
    done
    for name in airflow mlflow; do
        compose exec -T --user postgres postgres psql --quiet -c "CREATE ROLE $name LOGIN" -c "CREATE DATABASE $name OWNER $name"
        compose exec -T --user postgres postgres pg_restore --dbname "$name" --exit-on-error <"$folder/$name.dump"
    done
    up
}

command -v docker >/dev/null || give_up "there is no docker; on Debian and Ubuntu: apt-get install docker.io docker-compose"
case ${1:-} in
secrets) write_secrets ;;
build)
    write_secrets
    compose build
    ;;
up) up ;;
down) compose down ;;
logs) compose logs --follow --tail 100 ;;
backup | restore)
    [ -n "${2:-}" ] || give_up "name the folder: make $1 BACKUP=/some/folder"
    "$1" "$2"
    ;;
*) give_up "say secrets, build, up, down, logs, backup or restore, not '${1:-}'" ;;
esac
