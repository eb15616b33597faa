/** Command-line settings of where to resume: they apply to one start and are no part of a run. */
const resumeWords: readonly string[] = [
  'resume',
  'resume.step',
  'ckpt.resume_step',
  'trainer.ckpt.resume_step',
  'orchestrator.ckpt.resume_step',
];

export function settingsWithoutResume(overrides: Readonly<Record<string, string>>): Record<string, string> {
  const nameOf = (key: string): string => key.replace(/^-*(?:ratchet\.)?/, '').replaceAll('-', '_');
  return Object.fromEntries(Object.entries(overrides).filter(([key]) => !resumeWords.includes(nameOf(key))));
}
