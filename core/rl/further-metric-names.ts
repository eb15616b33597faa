import type { MetricDefinition } from './metric-names.ts';

/** Of a run whose teacher scores. */
export const teacherMetrics: Readonly<Record<'kl' | 'time', MetricDefinition>> = {
  kl: {
    name: 'train/teacher_kl',
    unit: 'nats',
    meaning:
      'mean of log π − log π_T of the sampled tokens: an estimate, per token, of the divergence of the policy that sampled from its teacher',
    source: 'rollouts',
    when: 'a `[teacher]` scores',
  },
  time: {
    name: 'time/teacher',
    unit: 'seconds',
    meaning: 'until the teacher had scored the batch',
    source: 'clock',
    when: 'a `[teacher]` scores',
  },
};

/** What was in flight when something died. */
export const lostMetricDefinitions: readonly MetricDefinition[] = [
  {
    name: 'lost/rollouts',
    unit: 'rollouts',
    meaning: 'rollouts in flight that were lost and sampled again',
    source: 'recovery',
    when: 'there were some',
  },
  { name: 'lost/tokens', unit: 'tokens', meaning: 'tokens of them', source: 'recovery', when: 'there were some' },
  {
    name: 'lost/seconds',
    unit: 'seconds',
    meaning: 'from the start of what was lost until it was begun again',
    source: 'recovery',
    when: 'there were some',
  },
];
