/** Scripts of POSIX `sh`, for Linux with /proc. */

/** One word of a shell. */
export function quoted(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** What runs a script whose text comes first in the input; what follows it there is the input of the script. */
export function readingScript(script: string): { readonly command: string; readonly script: Buffer } {
  const bytes = Buffer.from(script);
  // One byte at a time: no more than the script may be taken from the input.
  return { command: `eval "$(dd bs=1 count=${bytes.length} 2>/dev/null)"`, script: bytes };
}

/**
 * Ends the process whose number a file has, with all that descend from it, and its group. One that has not begun sees
 * the file beside it, and does not begin.
 */
export function killScript(mark: string): string {
  return [
    `: >${quoted(`${mark}.stop`)}`,
    `p=$(cat ${quoted(mark)} 2>/dev/null) || exit 0`,
    'end() { kill -STOP $1 2>/dev/null; for c in $(cat /proc/$1/task/*/children 2>/dev/null); do end $c; done; kill -KILL $1 2>/dev/null; }',
    'end $p',
    'kill -KILL -- -$p 2>/dev/null',
    'exit 0',
  ].join('\n');
}

/** The beginning of what `killScript` can end. */
export function markedScript(mark: string): string {
  return `echo $$ >${quoted(mark)}\ntest -e ${quoted(`${mark}.stop`)} && exit 137`;
}
