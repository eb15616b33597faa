import { createReadStream } from 'node:fs';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Command } from 'commander';
import { RatchetError } from '../../core/errors.ts';

/** How often a followed file is looked at. */
const pollMs = 300;

export const logsCommand = new Command('logs')
  .description("a run's log of one role, or the names of the roles that have one")
  .argument('<run>')
  .argument('[role]', 'orchestrator, rollout or train')
  .option('-f, --follow', 'go on printing what is added')
  .option('--outputs <folder>', 'the folder that holds the runs', 'outputs')
  .action(async (run: string, role: string | undefined, options: { follow?: boolean; outputs: string }) => {
    const folder = await newestAttempt(path.resolve(options.outputs, run, 'logs'), run);
    const roles = (await readdir(folder)).filter((name) => name.endsWith('.log')).map((name) => name.slice(0, -4));
    if (role === undefined) {
      process.stdout.write(`${folder}\n${roles.map((name) => `  ratchet logs ${run} ${name}`).join('\n')}\n`);
      return;
    }
    if (!roles.includes(role)) {
      throw new RatchetError(
        'RunNotFound',
        `${folder} has no log of ${JSON.stringify(role)}; it has: ${roles.join(', ') || 'none'}.`,
      );
    }
    await print(path.join(folder, `${role}.log`), options.follow ?? false);
  });

async function newestAttempt(folder: string, run: string): Promise<string> {
  const attempts = await readdir(folder).catch((cause: unknown) => {
    throw new RatchetError('RunNotFound', `There are no logs of a run ${run}: ${folder} does not exist.`, { cause });
  });
  const newest = Math.max(...attempts.map((name) => Number(/^attempt_(\d+)$/.exec(name)?.[1] ?? 0)));
  return path.join(folder, `attempt_${newest}`);
}

async function print(file: string, follow: boolean): Promise<void> {
  for (let offset = 0; ;) {
    const { size } = await stat(file);
    if (size > offset) {
      for await (const chunk of createReadStream(file, { start: offset, end: size - 1 }))
        process.stdout.write(chunk as Buffer);
      offset = size;
    }
    if (!follow) return;
    await delay(pollMs);
  }
}
