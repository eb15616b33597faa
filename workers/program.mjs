/**
 * Runs one of our programs in a process of its own, built if possible: `workers/program.mjs worker --role rollout`.
 * Most of a worker's start is loading its files one by one, and killed workers start again.
 */
import { builtProgram, keepCompiled, programs } from './built.mjs';
import { endWhenTold } from './first-process.mjs';

// Same as in the command: builds written here are executed by other users of the group, so nobody else may write them.
process.umask(process.umask() | 0o007);
endWhenTold();
keepCompiled();
const name = process.argv[2] ?? '';
const source = programs[name];
if (source === undefined) {
  process.stderr.write(`expected one of ${Object.keys(programs).join(', ')}, got ${name || 'nothing'}.\n`);
  process.exit(2);
}
process.argv.splice(1, 2, source);
const built = await builtProgram({ name });
if (built === undefined) (await import('tsx/esm/api')).register();
await import(built ?? new URL(`../${source}`, import.meta.url).href);
