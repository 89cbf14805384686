#!/bin/sh
# Starts the official server, whose path comes first, without the flags that only ours has.
server=$1
shift
for word; do
    shift
    case $word in
    --io-engine=* | --io-cores=*) ;;
    *) set -- "$@" "$word" ;;
    esac
done
exec "$server" "$@"
