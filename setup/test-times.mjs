/**
 * Loaded into each test file's process when `RATCHET_TEST_TIMES` names a file: appends a line with the CPU seconds of
 * the process and its awaited children, the seconds from start to end, and the test file. Linux only. `sort -rn` shows
 * the most expensive tests.
 */
import { appendFileSync, readFileSync } from 'node:fs';

const file = process.env['RATCHET_TEST_TIMES'];
const name = process.argv[1] ?? '';
/** Linux counts CPU time of `/proc/self/stat` in hundredths. */
const ticksPerSecond = 100;

if (file && /\.test\.(ts|mjs)$/.test(name)) {
  process.on('exit', () => {
    // utime, stime, cutime, cstime: the 14th to 17th field, behind the name in parentheses.
    const fields = readFileSync('/proc/self/stat', 'utf8').split(') ').at(-1)?.split(' ') ?? [];
    const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
    const seconds = [ticks / ticksPerSecond, process.uptime()].map((value) => value.toFixed(2));
    appendFileSync(file, `${seconds.join(' ')} ${name}\n`);
  });
}
