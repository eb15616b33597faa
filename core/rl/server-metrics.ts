import type { MetricDefinition } from './metric-names.ts';

/** What broadcasts find at the inference servers: a section of `metric-names.ts`. */
export const serverMetrics: {
  readonly title: string;
  readonly text: string;
  readonly metrics: readonly MetricDefinition[];
} = {
  title: 'Inference servers',
  text: 'Of the broadcast before the step: each server is asked for the logprobs of the canary, a few tokens that the trainer scored.',
  metrics: [
    {
      name: 'inference/canary_difference',
      unit: 'nats',
      meaning: 'how far the worst server’s logprobs lie from the trainer’s, mean of |Δ|',
      source: 'servers',
      when: 'from the first canary on',
    },
    {
      name: 'inference/servers_aside',
      unit: 'servers',
      meaning: 'servers that were off by more than the threshold, and are asked for nothing of that version',
      source: 'servers',
      when: 'from the first canary on',
    },
  ],
};
