/**
 * One of our programs in a process of its own, as built where it can be: `workers/program.mjs worker --role rollout`. What a worker costs to
 * start is mostly loading its files one by one, and who is killed is started again.
 */
import { builtProgram, keepCompiled, programs } from './built.mjs';

// As the command does: what is built here is run by whoever reads it.
process.umask(process.umask() | 0o007);
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
