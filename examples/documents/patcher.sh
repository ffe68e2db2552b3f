# Stands in for a tool that edits code: its server is down for the first two calls after `start`, and works from then on.
set -e
mkdir -p build/pipeline
case $1 in
start) echo 2 > build/pipeline/failures ;;
esac
left=$(cat build/pipeline/failures)
if [ "$1" != start ] && [ "$left" -gt 0 ]; then
  echo $((left - 1)) > build/pipeline/failures
  echo "no connection to the server" >&2
  exit 1
fi
echo "$1 done"
