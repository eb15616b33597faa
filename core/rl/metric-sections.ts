import { teacherMetrics } from './further-metric-names.ts';
import type { MetricDefinition } from './metric-names.ts';

/** Sections of `metric-names.ts`. */
interface MetricSection {
  readonly title: string;
  readonly text: string;
  readonly metrics: readonly MetricDefinition[];
}

/** What broadcasts find at the inference servers. */
export const serverMetrics: MetricSection = {
  title: 'Inference servers',
  text: 'Of the broadcast before the step: each server is asked for the logprobs of the canary, a few tokens that the trainer scored.',
  metrics: [
    {
      name: 'inference/canary_difference',
      unit: 'nats',
      meaning: 'how far the worst server’s logprobs are from the trainer’s, mean of |Δ|',
      source: 'servers',
      when: 'from the first canary on',
    },
    {
      name: 'inference/servers_quarantined',
      unit: 'servers',
      meaning: 'servers that were off by more than the threshold, and are asked for nothing of that version',
      source: 'servers',
      when: 'from the first canary on',
    },
  ],
};

export const timeSection: MetricSection = {
  title: 'Time',
  text: 'At `max_async_level = 1` generation and scoring run beside the step before, so the parts add up to more than the step.',
  metrics: [
    { name: 'time/step', unit: 'seconds', meaning: 'wall time of the step', source: 'clock' },
    {
      name: 'time/wait_for_batch',
      unit: 'seconds',
      meaning: 'from the end of the step before until this one’s groups were there',
      source: 'clock',
    },
    {
      name: 'time/wait_for_eval',
      unit: 'seconds',
      meaning: 'that training waited for servers which an evaluation had for itself',
      source: 'clock',
      when: '`[eval] when = "pause"`, or servers that hold one version; in steps that waited',
    },
    teacherMetrics.time,
    { name: 'time/train', unit: 'seconds', meaning: 'the gradient step', source: 'clock' },
    {
      name: 'rollout/generation_time',
      unit: 'seconds',
      meaning: 'generation of this step’s groups',
      source: 'clock',
    },
    { name: 'rollout/scoring_time', unit: 'seconds', meaning: 'scoring of them', source: 'clock' },
    {
      name: 'time/paused',
      unit: 'seconds',
      meaning: 'during which a person had paused the run',
      source: 'clock',
      when: 'after a pause, or an end that was extended later',
    },
  ],
};
