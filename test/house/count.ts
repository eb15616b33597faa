/**
 * `npm run house`: counts what makes the code heavy or light, by room, so that two states can be compared. It prints tables; `--json` prints
 * the numbers, with the places behind each. `--root FOLDER` counts another checkout. A room is a folder at the top, with everything below it.
 */
import { parseArgs } from 'node:util';
import { fileURLToPath } from 'node:url';
import { countHouse, type Counts } from './counts.ts';
import { tablesOf } from './tables.ts';

const { values } = parseArgs({ options: { json: { type: 'boolean' }, root: { type: 'string' } } });
const counts: Counts = countHouse(values.root ?? fileURLToPath(new URL('../../', import.meta.url)));
process.stdout.write(values.json ? `${JSON.stringify(counts, null, 1)}\n` : tablesOf(counts));
