import { readdir } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { Command } from '@commander-js/extra-typings';
import { RatchetError } from '../../../core/errors.ts';
import { runNamePattern } from '../../../core/names.ts';
import { openRegular } from '../../../host/regular-file.ts';
import { withoutControls } from '../../output/plain-text.ts';
import { print, printAside } from '../../output/print.ts';

/** Interval between reads of a followed file. */
const pollMs = 300;

export const logsCommand = new Command('logs')
  .description("a run's log of one role, or the names of the roles that have one")
  .argument('<run>')
  .argument('[role]', 'orchestrator, rollout or train')
  .option('-f, --follow', 'continue printing what is added')
  .option('--outputs <folder>', 'the folder that holds the runs', 'outputs')
  .action(async (run, role, options) => {
    if (!runNamePattern.test(run)) {
      throw new RatchetError('RunNotFound', `There is no run ${JSON.stringify(run)}: that is no name of a run.`);
    }
    const attempts = await attemptsOf(path.resolve(options.outputs, run, 'logs'), run);
    const newest = attempts[0]!;
    if (role === undefined) {
      print([newest.folder, ...newest.roles.map((name) => `  npx ratchet-rl logs ${run} ${name}`)].join('\n'));
      return;
    }
    const withRole = attempts.find(({ roles }) => roles.includes(role));
    if (!withRole) {
      const known = [...new Set(attempts.flatMap(({ roles }) => roles))];
      throw new RatchetError(
        'RunNotFound',
        `${newest.folder} has no log of ${JSON.stringify(role)}; the run has: ${known.join(', ') || 'none'}.`,
      );
    }
    if (withRole !== newest) {
      printAside(
        `${path.basename(newest.folder)} has no log of ${role} yet; this is ${path.basename(withRole.folder)}`,
      );
    }
    await show(path.join(withRole.folder, `${role}.log`), options.follow ?? false, path.resolve(options.outputs, run));
  });

interface Attempt {
  readonly folder: string;
  readonly roles: readonly string[];
}

/** Newest first; never empty. */
async function attemptsOf(folder: string, run: string): Promise<Attempt[]> {
  const names = await readdir(folder).catch((cause: unknown) => {
    throw new RatchetError('RunNotFound', `There are no logs of a run ${run}: ${folder} does not exist.`, { cause });
  });
  const numbers = names.flatMap((name) => /^attempt_(\d+)$/.exec(name)?.[1] ?? []).map(Number);
  if (numbers.length === 0)
    throw new RatchetError('RunNotFound', `There are no logs of a run ${run} in ${folder} yet.`);
  return Promise.all(
    numbers
      .toSorted((a, b) => b - a)
      .map(async (number) => {
        const attempt = path.join(folder, `attempt_${number}`);
        const files = await readdir(attempt);
        return { folder: attempt, roles: files.filter((n) => n.endsWith('.log')).map((n) => n.slice(0, -4)) };
      }),
  );
}

/** The run may be another user's: entries that are not files in its folder are refused. */
async function show(file: string, follow: boolean, runFolder: string): Promise<void> {
  const decoder = new TextDecoder();
  for (let offset = 0; ;) {
    const log = await openRegular(file, { within: [runFolder] });
    try {
      const { size } = await log.stat();
      if (size > offset) {
        for await (const chunk of log.createReadStream({ start: offset, end: size - 1, autoClose: false }))
          process.stdout.write(shown(decoder.decode(chunk as Buffer, { stream: true })));
        offset = size;
      }
    } finally {
      await log.close();
    }
    if (!follow) return;
    await delay(pollMs);
  }
}

/**
 * Logs quote models, environments and servers, so a terminal gets them without control characters; a file or a program
 * gets them unchanged.
 */
function shown(text: string): string {
  return process.stdout.isTTY ? withoutControls(text) : text;
}
