import path from 'node:path';
import { type Client, ScheduleAlreadyRunning, ScheduleNotFoundError, type ScheduleSummary } from '@temporalio/client';
import { Command, Option } from '@commander-js/extra-typings';
import { RatchetError } from '../../core/errors.ts';
import { scheduleStoreMemo, taskQueues, workflowIdPattern } from '../../core/names.ts';
import { regressionActions } from '../../config/evaluations/eval-words.ts';
import type { EvaluatedNewest, EvaluateNewestInput, evaluateNewest } from '../../workflows/evaluate-newest.ts';
import { onOneLine } from '../output/plain-text.ts';
import { rootMessage } from '../../workers/temporal/root-message.ts';
import { grantOption, storeOption } from '../typed/store-option.ts';
import { nameIn } from '../../core/rl/changes.ts';
import { identityHere } from '../../workers/temporal/who-may.ts';
import { withTemporal } from '../temporal/with-temporal.ts';
import { print } from '../output/print.ts';
import { placesOfChanges, recordIt, storeOfChanges } from './schedule-changes.ts';
import { type ScheduleOptions, inputOf } from './scheduled-input.ts';

const help = `
Examples:
  npx ratchet-rl eval schedule configs/eval/suite.toml --every 1h --run my-run     the newest sealed checkpoint of my-run, each hour
  npx ratchet-rl eval schedule --run my-run --every 30m --on-regression pause      as the run's own [eval] says
  npx ratchet-rl eval schedule nightly.toml --cron '0 3 * * *'                     the models that the file names, at 3:00 UTC
  npx ratchet-rl eval schedule list

One that is still at work when the next is due keeps it from beginning; one that fails pauses the schedule. A checkpoint that was
evaluated before costs nothing. It is a Temporal Schedule: \`ratchet temporal schedule describe --schedule-id ID\` shows it as well. It is
carried out while a stack runs: \`ratchet dev\`, a run in training, or a cluster.
`;

/** `ratchet eval schedule`. */
export const scheduleCommand = new Command('schedule')
  .description('evaluate on a schedule what is newest of a run, or the models of a file')
  .argument('[file]', 'a TOML file with [[eval]]; with --run, models in the file are ignored')
  .option('--every <time>', 'as in 30m, 6h, 1d')
  .addOption(
    new Option('--cron <expression>', 'minute, hour, day, month, weekday, in UTC').argParser(
      (value: string, before: readonly string[] | undefined) => [...(before ?? []), value],
    ),
  )
  .option('--run <run>', 'the run whose newest sealed checkpoint is evaluated')
  .addOption(
    new Option(
      '--on-regression <action>',
      'what the run does when two evaluations in a row are worse than those before, beyond doubt',
    )
      .choices(regressionActions)
      .default('flag'),
  )
  .option('--name <id>', 'of the schedule (default: eval.FILE.RUN)')
  .option('--catch-up <time>', 'how late it may still begin when nothing ran at its time', '10m')
  .option('--pool <name>', 'the pool whose rollout workers play it (default: that of --run)')
  .option(...storeOption)
  .option(...grantOption)
  .addHelpText('after', help)
  .action(create)
  .addCommand(new Command('list').description('all schedules of evaluations').action(list))
  .addCommand(one('pause', 'begin no more until it is resumed', async (found) => found.pause(await noteOf('pause'))))
  .addCommand(one('resume', 'continue', async (found) => found.unpause(await noteOf('resume'))))
  .addCommand(one('trigger', 'evaluate once, now', (found) => found.trigger()))
  .addCommand(one('delete', 'take it down; what was evaluated stays', (found) => found.delete()));

async function create(file: string | undefined, options: ScheduleOptions): Promise<void> {
  const { every, cron = [], run } = options;
  if (every === undefined && cron.length === 0) {
    throw new RatchetError('ConfigInvalid', "Say when: --every 1h, or --cron '0 3 * * *'.");
  }
  if (file === undefined && run === undefined) {
    throw new RatchetError('ConfigInvalid', 'Say what: a file with [[eval]], --run RUN, or both.');
  }
  const { input, pool, start } = await inputOf(file, options);
  const stem = file === undefined ? [] : [path.basename(file, '.toml').replaceAll(/[^\w.-]+/g, '-')];
  const id = options.name ?? ['eval', ...stem, ...(run === undefined ? [] : [run])].join('.');
  if (!workflowIdPattern.test(id))
    throw new RatchetError(
      'ConfigInvalid',
      `--name: expected letters, digits and . _ : + @ -; got ${JSON.stringify(id)}.`,
    );
  const store = storeOfChanges(input, options.store);
  await withTemporal(async (client) => {
    try {
      await client.schedule.create({
        scheduleId: id,
        spec: {
          ...(every === undefined ? {} : { intervals: [{ every: milliseconds('--every', every) }] }),
          cronExpressions: [...cron],
        },
        action: {
          type: 'startWorkflow',
          workflowType: 'evaluateNewest',
          taskQueue: taskQueues.orchestrator,
          args: [input],
          workflowId: id,
          workflowTaskTimeout: '5s',
          staticSummary: describe(input),
          ...start,
        },
        policies: { overlap: 'SKIP', catchupWindow: milliseconds('--catch-up', options.catchUp), pauseOnFailure: true },
        memo: { ratchet_eval: input, [scheduleStoreMemo]: store },
      });
    } catch (error) {
      // The server reads the expression; the SDK makes its refusal a TypeError.
      if (error instanceof TypeError && cron.length > 0) {
        throw new RatchetError(
          'ConfigInvalid',
          `--cron ${cron.map((one) => JSON.stringify(one)).join(', ')}: expected minute, hour, day, month and weekday as in '0 3 * * *'; the Temporal server says: ${error.message}.`,
          { cause: error },
        );
      }
      if (!(error instanceof ScheduleAlreadyRunning)) throw error;
      throw new RatchetError(
        'ConfigInvalid',
        `There is a schedule ${id} already: take it down with npx ratchet-rl eval schedule delete ${id}, or give this one another --name.`,
        { cause: error },
      );
    }
    const asked = [...(every === undefined ? [] : [`every ${every}`]), ...cron.map((one) => `cron ${one}`)];
    if (options.onRegression !== 'flag') asked.push(`on regression ${options.onRegression}`);
    await recordIt(client, {
      schedule: id,
      store,
      run: input.run?.name ?? null,
      what: 'schedule',
      asked: `${id} ${describe(input)}, ${asked.join(', ')}`,
    });
    const { info } = await handleOf(client, id).describe();
    const [next] = info.nextActionTimes;
    const by = pool === null ? '' : `, by the rollout workers of the pool ${pool}`;
    say(`${id}: ${describe(input)}${by}, first at ${next === undefined ? 'no time' : timeOf(next)}`);
    say(`now, too: npx ratchet-rl eval schedule trigger ${id}`);
  });
}

function describe({ config, run }: EvaluateNewestInput): string {
  const what = config === null ? 'its [eval]' : path.basename(config);
  return run === null ? `the models of ${what}` : `the newest checkpoint of ${run.name} on ${what}`;
}

async function list(): Promise<void> {
  await withTemporal(async (client) => {
    const rows: string[][] = [];
    for await (const schedule of client.schedule.list()) {
      if (schedule.action?.workflowType !== 'evaluateNewest') continue;
      rows.push(await rowOf(client, schedule));
    }
    if (rows.length === 0)
      return say('no schedules of evaluations; ratchet eval schedule FILE --every 1h --run RUN makes one');
    say(rows.map(([id, what, next, last]) => `${id}  ${what}\n    next ${next} · last ${last}`).join('\n'));
  });
}

async function rowOf(client: Client, { scheduleId, memo, state, info }: ScheduleSummary): Promise<string[]> {
  const input = memo?.['ratchet_eval'] as EvaluateNewestInput | undefined;
  const next = state.paused ? `paused${state.note === undefined ? '' : `: ${state.note}`}` : info.nextActionTimes[0];
  const last = info.recentActions.at(-1);
  return [
    scheduleId,
    input === undefined ? '' : describe(input),
    next instanceof Date ? timeOf(next) : (next ?? 'never'),
    last === undefined ? 'not yet' : `${timeOf(last.takenAt)} ${await cameOf(client, last.action.workflow)}`,
  ];
}

async function cameOf(
  client: Client,
  { workflowId, firstExecutionRunId }: { readonly workflowId: string; readonly firstExecutionRunId: string },
): Promise<string> {
  const handle = client.workflow.getHandle<typeof evaluateNewest>(workflowId, firstExecutionRunId);
  const { status } = await handle.describe().catch(() => ({ status: { name: 'UNKNOWN' as const } }));
  if (status.name === 'FAILED') {
    const why = await handle.result().then(() => '', rootMessage);
    return `failed: ${onOneLine(why.split('\n')[0]!)}`;
  }
  if (status.name !== 'COMPLETED') return status.name.toLowerCase();
  const { step, results, regressions }: EvaluatedNewest = await handle.result();
  const figures = results.map(({ environment, avgReward }) => `${environment} ${avgReward?.toFixed(3) ?? '–'}`);
  return [...(step === null ? [] : [`v${step}`]), ...figures, ...(regressions.length > 0 ? ['REGRESSION'] : [])].join(
    ' ',
  );
}

/** Runs a command that changes a schedule, and has the change recorded. */
function one(
  name: keyof typeof said,
  description: string,
  work: (schedule: ReturnType<typeof handleOf>) => Promise<unknown>,
) {
  return new Command(name)
    .description(description)
    .argument('<schedule>')
    .action(async (id) => {
      await withTemporal(async (client) => {
        const schedule = handleOf(client, id);
        const change = async () => {
          const places = await placesOfChanges(schedule); // a schedule that was deleted does not say them
          await work(schedule);
          return places;
        };
        const places = await change().catch((error: unknown) => {
          if (!(error instanceof ScheduleNotFoundError)) throw error;
          throw new RatchetError(
            'RunNotFound',
            `There is no schedule ${id}. npx ratchet-rl eval schedule list shows those there are.`,
            { cause: error },
          );
        });
        say(`${id}: ${said[name]}`);
        if (places !== null) await recordIt(client, { schedule: id, ...places, what: `schedule-${name}`, asked: id });
      });
    });
}

const said = {
  pause: 'paused',
  resume: 'continues',
  trigger: 'evaluates now, unless it is at work already',
  delete: 'taken down',
};

/** Temporal keeps no name with a change of a schedule, but its note. */
async function noteOf(command: 'pause' | 'resume'): Promise<string> {
  return `${nameIn(await identityHere())}: ratchet eval schedule ${command}`;
}

function handleOf(client: Client, id: string) {
  return client.schedule.getHandle(id);
}

const units = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** `90s`, `30m`, `6h`, `1d`. */
function milliseconds(option: string, text: string): number {
  const [, count, unit] = /^(\d{1,6})([smhd])$/.exec(text.trim()) ?? [];
  if (count !== undefined && Number(count) > 0) return Number(count) * units[unit as keyof typeof units];
  throw new RatchetError(
    'ConfigInvalid',
    `${option}: expected a time as in 90s, 30m, 6h or 1d; got ${JSON.stringify(text)}.`,
  );
}

function timeOf(time: Date): string {
  return `${time.toISOString().slice(0, 16).replace('T', ' ')} UTC`;
}

function say(text: string): void {
  print(text);
}
