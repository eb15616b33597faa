/**
 * What is to Ratchet a Python with prime-rl: it says what the installation is, and is torchrun for ranks of ours. As with torchrun, ranks have sessions of
 * their own, and outlive a launcher that is killed; one that fails takes the others along. Arguments: the command of a rank, then a Python's.
 */
import { spawn } from 'node:child_process';
import { installation, older } from './installation.mjs';

const [separator, ...rest] = [process.argv.indexOf('--'), ...process.argv.slice(2)];
const rankCommand = rest.slice(0, separator - 2);
const [, module, ...args] = process.argv.slice(separator + 1);

if (module === 'ratchet_prime_rl.look') {
  const given = JSON.parse(process.env['STAND_IN_LOOK'] ?? '{}');
  process.stdout.write(
    `${JSON.stringify({ ...(rankCommand.at(-1)?.includes('older') ? older : installation), ...given })}\n`,
  );
} else if (module === 'torch.distributed.run') launch();
else throw new Error(`the stand-in has no module ${String(module)}`);

function launch() {
  const count = Number(args.find((arg) => arg.startsWith('--nproc-per-node='))?.split('=')[1]);
  const settings = /** @type {string} */ (args.at(-1));
  const [command = '', ...before] = rankCommand;
  const ranks = Array.from({ length: count }, (_, rank) =>
    spawn(command, [...before, settings, String(rank), String(count)], { detached: true, stdio: 'inherit' }),
  );
  const end = (/** @type {number} */ code) => {
    for (const { pid } of ranks) {
      try {
        if (pid) process.kill(pid, 'SIGKILL');
      } catch {
        // it has ended
      }
    }
    process.exit(code);
  };
  let running = count;
  for (const rank of ranks)
    rank.on('exit', (code) => {
      if (code !== 0) end(1);
      running -= 1;
      if (running === 0) process.exit(0);
    });
  process.on('SIGTERM', () => end(1));
}
