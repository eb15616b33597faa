import path from 'node:path';
import { openModel, saveModelFolder } from '../../engine/index.ts';
import { choosePort } from '../../workers/stack/ports.ts';
import { tinkerContracts } from '../backends/tinker-suites.ts';
import { ensureSkyrl, startSkyrl } from './skyrl.ts';

/** The contracts of a trainer and of an inference, held by a real SkyRL: `npm run test:engines`. */

const skyrl = await ensureSkyrl();
const skip = 'missing' in skyrl ? `no SkyRL here: ${skyrl.missing}` : false;
if (skip) process.stderr.write(`skipped: ${skip}\n`);

const preset = 'preset:reverse-text-vllm-0.2m';

tinkerContracts('SkyRL', {
  preset,
  startsAfresh: false,
  skip,
  async start(folder) {
    if ('missing' in skyrl) throw new Error(skyrl.missing);
    const model = path.join(folder, 'model');
    await saveModelFolder(await openModel(preset, { seed: 0 }), model);
    const server = startSkyrl(skyrl, { folder, model, port: await choosePort(0), adaptersMax: 32 });
    return { url: server.url, base: model, close: () => server.kill() };
  },
});
