/** The stand-in as a process of its own, to be killed: `tsx main.ts FOLDER MODEL PORT [OPTIONS as JSON]`. */
import type { StandInOptions } from './options.ts';
import { startTinkerStandIn } from './server.ts';

const [folder, model, port, more = '{}'] = process.argv.slice(2);
const options = JSON.parse(more) as Partial<StandInOptions>;
const { url } = await startTinkerStandIn({ folder: folder!, model: model!, port: Number(port), ...options });
process.stdout.write(`listening at ${url}\n`);
