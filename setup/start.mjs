/** `npm start`: packages, then the first run. Everything else is the command line's own. */
import { ensurePackages, projectRoot, runInForeground, runSetup } from './packages.mjs';

const startedAt = String(Date.now());

await runSetup(async () => {
  process.stdout.write(
    'Ratchet: trains a small language model by reinforcement learning, durably. ' +
      'Nothing leaves this machine; about 0.7 GB here.\n',
  );
  await ensurePackages({ label: '1/3 packages' });
  const args = ['cli/ratchet.mjs', 'train', 'configs/rl/reverse-text.toml', ...process.argv.slice(2)];
  return runInForeground(process.execPath, args, {
    folder: projectRoot,
    env: { ...process.env, RATCHET_STARTED_AT: startedAt },
  });
});
