import { z } from 'zod';
import type { RunEvent } from '../../workflows/control/messages.ts';
import type { Waiting } from '../follow/follow-run.ts';

/** Output of `--json`: one object per line on stdout. docs/guide/ndjson.md is generated from these schemas. */

const time = z.iso.datetime().describe('when it happened, ISO 8601, UTC');
const run = z.string().describe('name of the run');

const started = z
  .strictObject({
    type: z.literal('started'),
    time,
    run,
    workflow: z.string().describe('id of the Temporal workflow'),
    attached: z.boolean().describe('the run was running already'),
  })
  .describe('The run is found or started. Always the first line.');

const event = z
  .strictObject({
    type: z.literal('event'),
    time,
    run,
    sequence: z
      .int()
      .positive()
      .describe('grows by one per event within a run; gaps are events from before one attached'),
    kind: z
      .enum([
        'warm-up',
        'eval',
        'regression',
        'prompt',
        'step',
        'checkpoint',
        'recovery',
        'rewound',
        'upgraded',
        'refused',
        'paused',
        'set',
        'change',
        'stopping',
        'resumed',
        'warning',
        'finished',
        'stopped',
      ])
      .describe('what happened'),
    step: z.int().nonnegative().describe('the step it belongs to'),
    text: z.string().describe('one line for people'),
    values: z
      .record(z.string(), z.union([z.number(), z.string()]))
      .describe(
        'its figures; names ending in `_s` are seconds. The end of a prompt search beside a run has `environment` and `verdict` (`taken`, `offered`, `told`, `no better`, `nothing found`, `failed`, `cancelled`, `unanswered`). Where its prompt was played, it also has `calls`, `reflections`, `before`, `after`, `difference`, `low`, `high`, `examples` and `digest`',
      ),
  })
  .describe('Something happened. When one attaches to a running run, the last few events come first.');

const waitingOn = z.strictObject({
  what: z.string(),
  since: z.iso.datetime().nullable(),
  last_failure: z.string().nullable(),
  again_at: z.iso.datetime().nullable(),
});

const waiting = z
  .strictObject({
    type: z.literal('waiting'),
    time,
    run,
    step: z.int().nonnegative().nullable().describe('last committed step; null when it is not known'),
    paused_because: z.string().nullable().describe('why it is paused; null when it is not'),
    waiting_on: z
      .array(waitingOn)
      .describe(
        'each with `what`, `since` (null when not known), `last_failure` (null unless it is tried again) and `again_at` (null while it is at work)',
      ),
  })
  .describe('Nothing else was printed for 10 s.');

const end = z
  .strictObject({
    type: z.literal('end'),
    time,
    run,
    outcome: z
      .enum(['finished', 'failed', 'stopped', 'detached', 'lost'])
      .describe(
        '`finished`; `failed`: it ended with an error; `stopped`: you stopped it with its processes; `detached`: you left, and it is still running; `lost`: its processes or its server are gone',
      ),
    exit_code: z.int().nonnegative().describe('of the command'),
    message: z.string().nullable().describe('why, where it did not finish'),
    step: z.int().nonnegative().nullable().describe('where it finished'),
    policy: z.string().nullable().describe('sha256 of the weights it finished with'),
    weights: z.string().nullable().describe("their folder, relative to the run's"),
    ledger_sound: z.boolean().nullable().describe('every group it issued is accounted for'),
    ettr: z.number().nullable().describe('effective training time, from 0 to 1'),
  })
  .describe('The last line.');

export const NdjsonLine = z.discriminatedUnion('type', [started, event, waiting, end]);
export type NdjsonLine = z.infer<typeof NdjsonLine>;
export type NdjsonEnd = z.infer<typeof end>;

export function eventLine(runName: string, { sequence, time: at, kind, step, text, values }: RunEvent): NdjsonLine {
  return { type: 'event', time: at, run: runName, sequence, kind, step, text, values };
}

export function waitingJson(runName: string, { pausedBecause, step, on }: Waiting): NdjsonLine {
  return {
    type: 'waiting',
    time: new Date().toISOString(),
    run: runName,
    step,
    paused_because: pausedBecause,
    waiting_on: on.map(({ what, since, lastFailure, nextAt }) => ({
      what,
      since,
      last_failure: lastFailure,
      again_at: nextAt,
    })),
  };
}
