"""The study database: tables, migrations, StudyStore."""
