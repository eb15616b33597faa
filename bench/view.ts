import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { followRun } from '../cli/follow/follow-run.ts';
import { StoredRollouts } from '../cli/view/stored-rollouts.ts';
import type { TerminalOutput } from '../cli/view/terminal.ts';
import { TerminalView } from '../cli/view/terminal-view.ts';
import { taskQueues } from '../core/names.ts';
import { resolveStoreUri } from '../store/index.ts';
import type { trainRun } from '../workflows/train-run.ts';
import { type Bench, type Figures, measurement } from './measurement.ts';
import { demoConfig, newestStep, withProject, withStack } from './run-project.ts';
import { round } from './statistics.ts';

/**
 * Cost of the live view: CPU seconds of the process that watches the demo, over seconds of the clock. The view is drawn for a
 * terminal of 160 × 50 that throws everything away, with the rollouts page open for half of the time; the queries, answers,
 * events and rollouts are those of a real run that makes several steps a second.
 *
 * - `core_share`, goal ≤ 0.02: user and system time of this process, garbage collection included, as a share of one core.
 * - `written_bytes_per_s`: what a terminal, or a connection to one, has to take.
 */
export const view = measurement('view', 'what the live view takes of a core', measure)
  .option('--seconds <n>', 'how long it is watched, after its warm-up', Number, 60)
  .addHelpText('after', '\nGoal: core_share ≤ 0.02.');

async function measure(bench: Bench, { seconds }: { readonly seconds: number }): Promise<Figures> {
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client) => {
      const handle = await client.workflow.start<typeof trainRun>('trainRun', {
        workflowId: 'watched',
        taskQueue: taskQueues.orchestrator,
        args: [{ config: demoConfig, run: 'watched', overrides: { max_steps: '100000', 'sft.steps': '50' } }],
      });
      bench.doing('until it makes steps');
      while (newestStep(folder, 'watched') < 3) await delay(200, undefined, { signal: bench.signal });
      const left = new AbortController();
      const screen = new Nowhere();
      const keys: { press: (name: string) => void } = { press: () => undefined };
      const shown = new TerminalView({
        run: 'watched',
        screen: screen as unknown as TerminalOutput,
        keyboard: {
          isTTY: true,
          on: (_: string, heard: (text: string, key: { name: string }) => void) => {
            keys.press = (name) => heard(name, { name });
          },
          off: () => undefined,
          listenerCount: () => 0,
          setRawMode: () => undefined,
          resume: () => undefined,
          pause: () => undefined,
        } as never,
        shows: { hasColor: true, hasUnicode: true, reflows: true },
        leaving: 'detach',
        rollouts: () => new StoredRollouts({ name: 'watched', store: resolveStoreUri('file:outputs', folder) }),
        onLeave: () => left.abort(),
        asLine: (line) => `${line}\n`,
      });
      shown.open();
      let events = 0;
      const following = followRun({
        say: shown.say,
        earlier: shown.earlier,
        waiting: shown.waiting,
        snapshot: shown.snapshot,
        event(event) {
          events += 1;
          shown.event(event);
        },
        handle,
        isAttached: true,
        signal: left.signal,
      });
      await delay(5_000, undefined, { signal: bench.signal }); // what is loaded and compiled once
      bench.doing(`watching for ${seconds} s`);
      const before = { cpu: process.cpuUsage(), at: performance.now(), written: screen.written, events };
      await delay((seconds * 1000) / 2, undefined, { signal: bench.signal });
      keys.press('r');
      await delay((seconds * 1000) / 2, undefined, { signal: bench.signal });
      const { user, system } = process.cpuUsage(before.cpu);
      const wall_s = (performance.now() - before.at) / 1000;
      left.abort();
      await following;
      shown.close();
      await handle.cancel();
      return {
        core_share: round((user + system) / 1e6 / wall_s, 4),
        written_bytes_per_s: Math.round((screen.written - before.written) / wall_s),
        details: {
          seconds: round(wall_s, 1),
          events: events - before.events,
          load: readFileSync('/proc/loadavg', 'utf8').split(' ', 1)[0],
        },
      };
    }),
  );
}

/** A terminal of 160 × 50. */
class Nowhere {
  readonly columns = 160;
  readonly rows = 50;
  readonly isTTY = true;
  written = 0;

  write(text: string): boolean {
    this.written += Buffer.byteLength(text);
    return true;
  }

  on(): this {
    return this;
  }

  off(): this {
    return this;
  }
}
