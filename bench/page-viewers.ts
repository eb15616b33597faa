import { type ChildProcess, fork } from 'node:child_process';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath, pathToFileURL } from 'node:url';
import path from 'node:path';
import { type Change, changed } from '../core/change-between.ts';
import { taskQueues } from '../core/names.ts';
import { GrownAnswers } from '../ui/page/grown-answers.ts';
import type { RunOverview } from '../ui/answers.ts';
import type { trainRun } from '../workflows/train-run.ts';
import { cpuSecondsOf } from './cpu-meter.ts';
import type { Bench, Figures } from './measurement.ts';
import { startPage } from './page-server.ts';
import { demoConfig, newestStep, withProject, withStack } from './run-project.ts';
import { tokenOf } from '../test/ui/page-token.ts';
import { median, round } from './statistics.ts';

/**
 * Cost of viewers to a run, in CPU seconds: the same run, in turns of some steps without and with `viewers`.
 *
 * - `viewers_cpu_ratio`, goal ≤ 1.05: CPU of the run's own processes and Temporal a step, with all viewers ÷ without; the median of the pairs of turns.
 * - `viewers_cpu_of_nothing`: the same for turns without viewers, each ÷ the one before: the noise.
 * - `page_cpu_ms_viewed`, `page_cpu_ms_alone`: CPU of the page's process a step, in milliseconds.
 */
export async function viewersCost(
  bench: Bench,
  { viewers, pairs, stepsOfTurn }: { readonly viewers: number; readonly pairs: number; readonly stepsOfTurn: number },
): Promise<Figures> {
  return withProject(bench, (folder) =>
    withStack(bench, folder, async (client, stack) => {
      const overrides = {
        model: 'preset:reverse-text-0.2m',
        'max-steps': '100000',
        'batch-size': '64',
        'rollouts-per-example': '8',
        'sft.steps': '20',
        'checkpoints.interval': '1000',
        'eval.interval': '100000',
      };
      const handle = await client.workflow.start<typeof trainRun>('trainRun', {
        workflowId: name,
        taskQueue: taskQueues.orchestrator,
        args: [{ config: path.relative(folder, demoConfig), overrides, run: name }],
      });
      const untilStep = async (step: number): Promise<void> => {
        while (newestStep(folder, name) < step) await delay(100, undefined, { signal: bench.signal });
      };
      bench.doing('training until step 5');
      await untilStep(5);
      const env = { ...process.env, TEMPORAL_ADDRESS: stack.temporalAddress };
      const page = await startPage(`outputs/${name}`, folder, env);
      const crowd = await startCrowd(page.url);
      const turn = async (count: number): Promise<Turn> => {
        await gathered(crowd, count);
        await untilStep(newestStep(folder, name) + 1); // a turn begins and ends with a commit
        const begun = newestStep(folder, name);
        const read = (): Turn => {
          const [page_s, crowd_s] = [cpuSecondsOf(page.child.pid!), cpuSecondsOf(crowd.pid!)];
          return { page: page_s, run: cpuSecondsOf(process.pid) - page_s - crowd_s };
        };
        const before = read();
        await untilStep(begun + stepsOfTurn);
        const after = read();
        const steps = newestStep(folder, name) - begun;
        return { run: (after.run - before.run) / steps, page: (after.page - before.page) / steps };
      };
      try {
        const alone: Turn[] = [];
        const viewed: Turn[] = [];
        for (let pair = 1; pair <= pairs; pair++) {
          bench.doing(`pair ${pair} of ${pairs}: nobody, then ${viewers} viewers`);
          alone.push(await turn(0));
          viewed.push(await turn(viewers));
        }
        const milliseconds = (turns: readonly Turn[]): number =>
          round(median(turns.map(({ page }) => page)) * 1_000, 1);
        return {
          viewers,
          viewers_cpu_ratio: round(median(viewed.map(({ run }, i) => run / alone[i]!.run))),
          viewers_cpu_of_nothing: round(median(alone.slice(1).map(({ run }, i) => run / alone[i]!.run))),
          run_cpu_ms_alone: round(median(alone.map(({ run }) => run)) * 1_000, 0),
          page_cpu_ms_viewed: milliseconds(viewed),
          page_cpu_ms_alone: milliseconds(alone),
        };
      } finally {
        await handle.terminate('measured');
        await Promise.all([crowd, page.child].map(ended)); // the page writes the index of the run, whose folder is removed
      }
    }),
  );
}

const name = 'looked-at';

/** CPU seconds a step. */
interface Turn {
  readonly run: number;
  readonly page: number;
}

/** A process of its own with the viewers: what they need is no one's of the run. */
async function startCrowd(url: string): Promise<ChildProcess> {
  const tsx = ['--import', import.meta.resolve('tsx')];
  const crowd = fork(fileURLToPath(import.meta.url), [url], { execArgv: tsx });
  await new Promise((resolve) => crowd.once('message', resolve));
  return crowd;
}

async function ended(child: ChildProcess): Promise<void> {
  const exit = new Promise((resolve) => child.once('exit', resolve));
  if (child.exitCode === null && child.signalCode === null && child.kill()) await exit;
}

/** Until so many look, and have what they look at. */
async function gathered(crowd: ChildProcess, count: number): Promise<void> {
  const there = new Promise((resolve) => crowd.once('message', resolve));
  crowd.send(count);
  await there;
}

/** The crowd's own process. */
async function crowd(url: string): Promise<void> {
  const { origin } = new URL(url);
  const authorization = `Bearer ${tokenOf(url)}`;
  let leave = new AbortController();
  process.on('message', (count: number) => {
    leave.abort();
    leave = new AbortController();
    const { signal } = leave;
    const all = Array.from(
      { length: count },
      () => new Promise<void>((there) => void look(origin, authorization, signal, there)),
    );
    void Promise.all(all).then(() => process.send!('there'));
  });
  process.send!('ready');
}

/**
 * One viewer of the page's first view: follows the news, and requests the curves, the marks and the workers, as the
 * page does.
 */
async function look(origin: string, authorization: string, signal: AbortSignal, there: () => void): Promise<void> {
  const place = `${origin}/api/runs/${name}`;
  const answers = new GrownAnswers();
  const ask = async (path: string): Promise<void> => {
    const { headers, take } = answers.ask(path);
    const response = await fetch(place + path, { headers: { authorization, ...headers }, signal });
    take(response.headers, await response.json());
  };
  try {
    const told = await fetch(`${place}/live`, { headers: { authorization }, signal });
    let [heard, offset, news]: [string, number, unknown] = ['', -1, null];
    for await (const piece of told.body!.pipeThrough(new TextDecoderStream())) {
      heard += piece;
      for (let end = heard.indexOf('\n\n'); end >= 0; end = heard.indexOf('\n\n')) {
        const event = /^event: (run|change)\ndata: (.*)$/m.exec(heard.slice(0, end));
        heard = heard.slice(end + 2);
        if (!event) continue;
        const data: unknown = JSON.parse(event[2]!);
        news = event[1] === 'run' ? data : changed(news, data as Change);
        const now = news as { readonly offset: number; readonly overview: RunOverview };
        if (now.offset === offset) continue;
        offset = now.offset;
        const names = now.overview.metrics.slice(0, metricsShown).map((metric) => `name=${encodeURIComponent(metric)}`);
        await Promise.all([`/series?${names.join('&')}`, '/markers', '/timeline'].map(ask));
        there();
      }
    }
  } catch (error) {
    if (!signal.aborted) throw error;
  }
}

/** About as many as the page draws. */
const metricsShown = 40;

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href)
  await crowd(process.argv[2]!);
