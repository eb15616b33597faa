/** Parts of a list with commas: `OPENAI_API_KEY,HF_TOKEN`. */
export function namesOf(text: string | undefined): string[] {
  return (text ?? '')
    .split(',')
    .map((name) => name.trim())
    .filter((name) => name !== '');
}
