"""report: figures as people and programs read them: sheets for eyes (terminal, Markdown), JSON for scripts."""
